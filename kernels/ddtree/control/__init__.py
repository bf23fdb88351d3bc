"""Which trees to build next: widths that can be verified, what they cost, what they bring. Plain Python, no torch."""
