import numpy as np, torch, jax, jax.numpy as jnp, numpipe, os
os.environ["NUMPIPE_COMPILE_CHECK"]="0"; os.environ["NUMPIPE_TARGET"]="sim"
from numpipe import ops
import numpipe.torch as t, numpipe.jax as j
x=np.random.randn(3,5,37).astype(np.float32)
e=np.exp(x-x.max(-1,keepdims=True)); w=e/e.sum(-1,keepdims=True)
print(abs(ops.softmax(x)-w).max(), abs(ops.softmax(np.swapaxes(x,0,2).copy().swapaxes(0,2))-w).max(), ops.softmax(x[0,0]).shape)
a=torch.tensor(x[0],requires_grad=True); b=a.detach().double().requires_grad_()
y=t.softmax(a); z=torch.softmax(b,-1); g=torch.randn(5,37)
(ga,)=torch.autograd.grad(y,a,g,create_graph=True); (gb,)=torch.autograd.grad(z,b,g.double(),create_graph=True)
print((ga-gb).abs().max().item()); ga.square().sum().backward(); gb.square().sum().backward(); print((a.grad-b.grad).abs().max().item())
print(torch.library.opcheck(torch.ops.numpipe.softmax.default,(a,)))
f=lambda s: jax.grad(lambda v:(s(v)**2).sum()); print(abs(f(j.softmax)(jnp.asarray(x))-f(lambda v: jax.nn.softmax(v,-1))(jnp.asarray(x))).max())
print(abs(jax.vmap(f(j.softmax))(jnp.asarray(x))-f(lambda v: jax.nn.softmax(v,-1))(jnp.asarray(x))).max())
