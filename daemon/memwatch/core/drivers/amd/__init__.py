"""AMD GPUs: the amdgpu driver's files in sysfs, AMD's tools, and rules about both."""
