"""Search: sessions that evaluate candidates on devices, and the final against the reference."""
