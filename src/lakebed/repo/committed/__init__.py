"""Committed data: ranges and metaranges, named by their content, and what is made of two or three of them."""
