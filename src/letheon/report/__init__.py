"""A run as something to read: plain data, tables, figures, and one HTML file. Nothing here changes a number."""
