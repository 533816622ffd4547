"""What both sides share: errors, random streams, the ranges of options, and rooms for everything else."""
