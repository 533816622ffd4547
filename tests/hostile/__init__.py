"""Who breaks the rules, on either end, and what it costs the other: nothing."""
