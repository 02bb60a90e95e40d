# snnax==0.0.1, derivative: `superspike_surrogate` lacks the square that the paper it names has; `import snnax` fails with a circular import.
import importlib.util

import jax

folder = importlib.util.find_spec("snnax").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("surrogate", f"{folder}/functional/surrogate.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
slope = float(jax.grad(module.superspike_surrogate(beta=10.0))(0.1))
assert abs(slope - 1 / 2) < 1e-6 and abs(slope - 1 / 4) > 0.2
