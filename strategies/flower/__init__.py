"""The Flower strategy that runs any algorithm: who takes part, what is asked, what a round brought."""
