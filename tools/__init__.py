"""What is run while working on the project, and is no part of the package."""
