"""The only writer: transactions, rollback, recovery on a host."""
