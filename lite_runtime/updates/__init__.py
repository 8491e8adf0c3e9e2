"""What a hub and its devices read alike: releases, channels, and the differences between versions of a file."""
