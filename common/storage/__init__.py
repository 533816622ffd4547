"""Files: tensors that survive a crash, payloads that are not in memory, disks that are full."""
