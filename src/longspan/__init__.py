"""One large language model, split by layers over machines that are far apart, served through the OpenAI API."""

__version__ = "0.1.0"

__all__ = ["__version__"]
