"""How a round goes, as values: what agents tell goes in, what is to be done comes out."""
