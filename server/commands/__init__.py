"""The commands of `proxskip-server`, one file each; heavy imports are inside the functions."""
