"""The program that runs on the host: standard library only, Python 3.8 and newer; sent over stdin as one source."""
