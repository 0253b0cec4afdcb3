"""Routers: who serves a request."""
