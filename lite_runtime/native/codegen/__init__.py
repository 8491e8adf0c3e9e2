"""From portable kernels to the machine code of one target: operations, processors' own functions, linking."""
