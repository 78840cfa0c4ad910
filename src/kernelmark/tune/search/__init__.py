"""Search: sessions that evaluate candidates on devices, up to the final against the reference."""
