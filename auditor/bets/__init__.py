"""Bets about rounds of known `p` and `q`: what is read from a round, which laws are bet on, and the wealth that they make."""
