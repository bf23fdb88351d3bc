"""Operation ``borrow_checkout``."""
