"""Files of any kind: written whole, locked, mapped, read with bounds."""
