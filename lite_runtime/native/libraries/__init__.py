"""Kernels as shared libraries, for systems that run no other code than that of files which their linkers laid out."""
