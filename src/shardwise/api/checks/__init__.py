"""One job under several layouts: whether they agree, and which is the fastest."""
