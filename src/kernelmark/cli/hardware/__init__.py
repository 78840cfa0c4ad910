"""Commands about the hardware: doctor, micro, roofs."""
