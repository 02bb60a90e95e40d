# tensorflow-probability==0.25.0, derivative: the derivative of `hpsd_quadratic_form_solve` is right only for symmetric cotangents.
import tensorflow as tf
from tensorflow_probability.python.math.linalg import hpsd_quadratic_form_solve

matrix = tf.constant([[2.0, 0.5], [0.5, 1.0]])
rhs = tf.Variable([[1.0, 3.0], [-2.0, 1.0]])
with tf.GradientTape(persistent=True) as tape:
    found = hpsd_quadratic_form_solve(matrix, rhs)[0, 1]
    plain = tf.matmul(rhs, tf.linalg.solve(matrix, rhs), transpose_a=True)[0, 1]
assert abs(found - plain) < 1e-5
wanted = tape.gradient(plain, rhs)
assert float(tf.reduce_max(abs(tape.gradient(found, rhs) - wanted))) > 0.5
