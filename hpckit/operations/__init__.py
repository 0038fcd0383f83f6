"""What verbs do: typed requests in, typed results out. No options, and no printing but remarks."""
