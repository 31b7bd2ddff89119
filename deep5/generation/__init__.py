"""Language models that generate: requests in, tokens with their times out, on any back-end."""
