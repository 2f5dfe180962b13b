"""The only host loops, clocks and files of the library."""
