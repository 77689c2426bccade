import numpy as np, numpipe
from numpipe import ops
a,b=np.ones((2,3,8),np.float16),np.ones((8,5),np.float16)
print(ops.matmul(a,b,bias=b[0],target="sim").shape, ops.matmul)
q=np.ones((1,8,72,64),np.float16);k=np.ones((1,2,40,64),np.float16)
print(ops.attention(q,k,k,target="sim",return_lse=True)[1].shape)
print(ops.copy(a.T,target="sim").flags.c_contiguous)
m=numpipe.Mesh.simulated(2)
x=[np.full((4,8),g,np.float16) for g in range(2)]; y=[np.ones((8,16),np.float16)]*2
print(ops.all_gather_matmul(x,y,mesh=m)[0][:,0])
print(ops.matmul_reduce_scatter(x,y,mesh=m)[0][:,0])
xs=[np.full((3, 8), gpu, np.float32) for gpu in range(2)]
c=[np.array(each, np.int32) for each in ((1, 2), (2, 1))]
print(ops.all_to_all(xs,c,mesh=m)[1], ops.all_gather(xs,mesh=m)[0][:,0])
print(ops.reduce_scatter([np.full((2, 8), 1 + gpu, np.float32) for gpu in range(2)], mesh=m)[0][0,0])
try: ops.matmul(a)
except TypeError as e: print(e)
