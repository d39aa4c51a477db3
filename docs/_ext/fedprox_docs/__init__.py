"""What the documentation needs beside Sphinx and its published extensions."""
