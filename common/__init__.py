"""What both sides share: errors, random streams, the ranges of options, and rooms for everything else."""

import os

# gRPC reads this once, when it is imported: else it writes a line to stderr for each stranger without a certificate.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
