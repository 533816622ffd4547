"""What tests share: processes, a federation without a network, small data, textbook forms."""
