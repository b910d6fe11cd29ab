"""A paper's own code: what one notebook alone needs. It imports engines, never another paper."""
