"""Whole engines on models of known law: requests, sequences, their bets and findings."""
