"""What a run leaves behind: its folder, its journal, what is shown and reported of it."""
