"""Files: tensors that survive a crash, payloads that are not in memory, small files and secrets, locks, full disks."""
