"""Files of safetensors, alone or in folders as Hugging Face's libraries write them."""

from ckptstore.integrations.safetensors.transfer import export_safetensors, import_safetensors

__all__ = ["export_safetensors", "import_safetensors"]
