"""The steps that playbooks name, and the runs made of them."""
