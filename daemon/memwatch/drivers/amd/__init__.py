"""AMD GPUs: what the amdgpu driver says in sysfs, and what follows from it."""
