"""One task per file: data, split, model, loss and metrics; `task.name` is the file's name."""
