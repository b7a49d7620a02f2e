"""Requests in, events out."""
