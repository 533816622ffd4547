"""One task a file: data, split, model, loss and metrics; `task.name` is the file's name."""
