"""Pages that are generated from the code, and checks of all pages: `python -m tests.docs` writes the generated ones."""
