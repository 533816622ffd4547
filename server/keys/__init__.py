"""Who may join: the folder of a federation's keys, certificates, and clients' requests for them."""
