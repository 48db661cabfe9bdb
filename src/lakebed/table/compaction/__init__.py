"""Compactions: their plan, and carrying it out."""
