"""The demo: the moves of two groups as data, who performs and who shows them, and what is reported at the end."""
