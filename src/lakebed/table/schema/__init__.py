"""Schemas of a table: their evolution, their log, and rows conformed to them."""
