"""Speed against peers, as one table."""
