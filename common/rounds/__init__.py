"""A round as the paper has it: plan and state, what an algorithm is, schedule, mean, and the ledger of the zero sum."""
