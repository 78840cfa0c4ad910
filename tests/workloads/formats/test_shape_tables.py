"""Lists of shapes with a header: products, attention and convolutions, by whatever names."""

import pytest

from kernelmark.core.errors import UsageError
from kernelmark.workloads import workload
from kernelmark.workloads.calls import ASSUMED_DTYPE
from kernelmark.workloads.logs import recognized
from kernelmark_dev.raising import raises, tells

SEED = "source,op,suite_or_tag,dtype,acc_dtype,out_dtype,M,N,K,transA,transB,batch_count,note\n"
HEADS = (
    "op,tag,dtype,batch,heads_q,heads_kv,seqlen_q,seqlen_kv,head_dim_qk,head_dim_v,causal,note\n"
)
CONV = (
    "op,layout,in_dtype,out_dtype,N,H_out,W_out,C_in,R_kh,S_kw,K_out,stride_h,stride_w,pad,"
    "dilation,groups,H_in,W_in,note\n"
)


def keys(reading):
    return [call.problem.key for call in reading.workload.calls]


def test_letters_and_dtypes_of_a_product(read, told):
    text = SEED + (
        'a@1(main),gemm,one,fp16,f32,fp16,48,5,32,T,N,1,"x; y, z"\n'
        "a@1(main),gemm,two,,,,48,5,32,N,N,3,plain; note\n"
    )
    reading = read(text, "x.csv", dtype="f32")
    assert keys(reading) == [
        "batched_gemm batch=3 m=5 n=48 k=32 a=f32 b=f32 c=f32 acc=f32 ta=n tb=n alpha=1.0 "
        "beta=0.0 bias=no",
        "gemm m=5 n=48 k=32 a=f16 b=f16 c=f16 acc=f32 ta=n tb=t alpha=1.0 beta=0.0 bias=no",
    ]
    assert not told(reading)
    one = reading.workload.calls[1]
    assert (one.blas["transA"], one.blas["m"], one.blas["a_type"]) == ("T", "48", "f16_r")
    assert not one.lost


def test_what_was_read_how_and_what_was_not_is_noted(read):
    notes = read(f"{SEED}a,gemm,one,fp16,f32,fp16,48,5,32,T,N,1,x\n").inputs[0].notes
    assert len(notes) == 2
    assert tells(notes[1], columns=["source", "op", "suite_or_tag", "note"])
    assert read("m,n,k,ta,tb\n5,48,32,n,t\n", dtype="bf16").inputs[0].notes == ()
    with_types = "M,N,K,transA,transB,a_type,compute_type\n48,5,32,T,N,f16_r,f32_r\n"
    assert read(with_types).inputs[0].notes == (), "as the libraries write it"


@pytest.mark.parametrize(
    ("header", "row", "problem"),
    [
        (
            "M,N,K,A,B,dtype",
            "48,5,32,T,N,fp16",
            "m=5 n=48 k=32 a=f16 b=f16 c=f16 acc=f32 ta=n tb=t",
        ),
        ("m,n,k,a,b,c", "5,48,32,f16,f16,f32", "m=5 n=48 k=32 a=f16 b=f16 c=f32 acc=f32 ta=n tb=t"),
        ("m,n,k,tA,tB,dtype", "5,48,32,T,N,f16", "m=5 n=48 k=32 a=f16 b=f16 c=f16 acc=f32 ta=t"),
        ("m,n,k,dtype,out_dtype", "5,48,32,f16,f32", "m=5 n=48 k=32 a=f16 b=f16 c=f32"),
        ("m,n,k,a_type,d_type", "5,48,32,f16_r,f32_r", "m=5 n=48 k=32 a=f16 b=f16 c=f32"),
        ("M,N,K,dtype,layout", "48,5,32,i8,TN", "m=5 n=48 k=32 a=i8 b=i8 c=i32 acc=i32 ta=n tb=t"),
        ("M,N,K,transpose_a,transpose_b", "48,5,32,True,False", "m=5 n=48 k=32 a=bf16 b=bf16"),
        ("m;n;k;note", "5;48;32;a, b", "m=5 n=48 k=32 a=bf16"),
        ("m\tn\tk\tdtype\tnote", "5\t48\t32\t\ta b", "m=5 n=48 k=32 a=bf16"),
        ("m,n,k,bias,alpha", "5,48,32,yes,2", "m=5 n=48 k=32 a=bf16"),
        ("M,N,K,dtype", "5,48,32,any", "m=5 n=48 k=32 a=bf16"),
    ],
)
def test_columns_of_products(read, told, header, row, problem):
    reading = read(f"{header}\n{row}\n", "x.csv")
    assert not told(reading)
    assert [key.startswith(f"gemm {problem}") for key in keys(reading)] == [True], keys(reading)


def test_factors_and_a_bias_are_of_the_problem(read):
    (call,) = read("m,n,k,bias,alpha,beta\n5,48,32,yes,2,0\n").workload.calls
    assert call.problem.key.endswith("alpha=2.0 beta=0.0 bias=yes")
    (call,) = read("M,N,K,transA,transB,dtype,lda\n48,5,32,T,N,f16,64\n").workload.calls
    assert call.lost == ("lda",)


@pytest.mark.parametrize("name", ["count", "calls", "call_count", "Num Calls", "frequency"])
def test_counts(read, told, name):
    reading = read(f"M,N,K,transA,transB,dtype,{name}\n48,5,32,T,N,f16,7\n")
    assert [call.count for call in reading.workload.calls] == [7]
    reading = read(f"m,n,k,{name}\n5,48,32,7\n5,48,33,0\n5,48,34,-1\n5,48,35,2.5\n")
    assert reading.workload.total == 7
    values = {3: "count=0", 4: "-1", 5: "2.5"}
    assert {line: values[line] in why for line, why in told(reading)} == dict.fromkeys(values, True)
    spreadsheet = "m,n,k,count\n5.0,48.0,32.0,7.0\n"
    assert keys(read(spreadsheet)) == keys(read("m,n,k\n5,48,32\n"))


def test_attention(read, told):
    text = HEADS + (
        "attention,a,f16,1,32,8,642,642,128,128,no,\n"
        'attention,b,f8E4M3FNUZ,2,20,20,77,1024,64,32,yes,"x, y"\n'
        "attention_bwd,c,f16,2,20,20,1024,77,64,32,no,\n"
    )
    reading = read(text, "x.csv")
    assert keys(reading) == [
        "attention batch=1 heads_q=32 heads_kv=8 seq_q=642 seq_kv=642 dim_qk=128 dim_v=128 q=f16 "
        "kv=f16 o=f16 acc=f32 causal=no scale=auto layout=bhsd",
        "attention batch=2 heads_q=20 heads_kv=20 seq_q=77 seq_kv=1024 dim_qk=64 dim_v=32 "
        "q=f8e4m3fnuz kv=f8e4m3fnuz o=bf16 acc=f32 causal=yes scale=auto layout=bhsd",
    ]
    ((line, why),) = told(reading)
    assert (line, "attention_bwd" in why) == (4, True)


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("B,M,N,K1,K2,dtype", "4,128,32,64,256,f16"),
        ("B,H,Sq,Sk,D,Dv,dtype", "1,4,128,256,64,32,f16"),
        ("batch,nheads,seqlen_q,seqlen_k,hdim_q,hdim_v,dtype", "1,4,128,256,64,32,f16"),
        ("num_heads,num_kv_heads,q_len,kv_len,head_dim,head_dim_v", "4,4,128,256,64,32"),
    ],
)
def test_attention_by_other_names(read, told, header, row):
    reading = read(f"{header}\n{row}\n", "x.csv", dtype="f16")
    assert not told(reading)
    assert keys(reading) == [
        "attention batch=1 heads_q=4 heads_kv=4 seq_q=128 seq_kv=256 dim_qk=64 dim_v=32 q=f16 "
        "kv=f16 o=f16 acc=f32 causal=no scale=auto layout=bhsd"
    ]


def test_lines_may_end_as_on_windows(read, told):
    for text, name in (
        ("batch,heads,seq,dim\r\n2,4,128,64\r\n", "x.csv"),
        ("batch\theads\tseq\tdim\tnote\r\n2\t4\t128\t64\t\r\n", "x.tsv"),
    ):
        reading = read(text, name)
        assert (reading.workload.total, told(reading)) == (1, [])
    text = "my sizes\nbatch,heads,seq,dim\n2,4,128,64\n"  # a named list may begin otherwise
    assert [line for line, _ in told(read(text, form="shapes"))] == [1]


def test_a_table_of_a_document(read, told):
    text = "| M | N | K | dtype |\n|---|---|:-:|---|\n| 5 | 48 | 32 | f16 |\n| 6 | 48 | 32 | |\n"
    reading = read(text, "x.md")
    assert (reading.workload.total, told(reading)) == (2, [])
    assert reading.inputs[0].notes == (ASSUMED_DTYPE,)
    assert [call.problem.dtypes["a"] for call in reading.workload.calls] == ["f16", "bf16"]


@pytest.mark.parametrize(
    "text",
    [
        "sizes: m = 5, n = 48 and k\n5 48 32\n",
        "the letters m n k stand for sizes.\nand so on\n",
        "M,N,K\n",
    ],
)
def test_a_sentence_is_no_header_and_a_header_no_problem(read, text):
    with raises(UsageError):
        read(text, "x.txt")


def test_attention_of_one_length(read):
    (key,) = keys(read("batch,heads,seq,dim,layout,count\n2,4,128,64,BSHD,3\n"))
    assert "seq_q=128 seq_kv=128 dim_qk=64 dim_v=64" in key
    assert key.endswith("layout=bshd")


def test_convolutions(read, told):
    text = CONV + (
        "conv2d_fwd,any,any,any,1,7,6,4,3,3,8,2,2,0,1,1,16,14,\n"
        'conv2d_fwd,nchw_fchw,bf16,bf16,2,24,48,128,1,1,384,1,1,0,1,1,24,48,"-F 1, x"\n'
        "conv2d_wrw,nchw_fchw,bf16,bf16,2,24,48,128,1,1,384,1,1,0,1,1,24,48,\n"
        "conv2d_fwd,nhwc_hwcf,f16,f16,2,32,32,1280,3,3,1280,1,1,0,1,1,34,34,\n"
        "conv2d_fwd,nchw,f16,f16,2,31,32,1280,3,3,1280,1,1,0,1,1,34,34,\n"
        "conv2d_fwd,chwn,f16,f16,2,32,32,1280,3,3,1280,1,1,0,1,1,34,34,\n"
    )
    reading = read(text, "x.csv", dtype="f32")
    found = {call.problem.key: call.lost for call in reading.workload.calls}
    assert found == {
        "conv n=1 c=4 h=16 w=14 k=8 r=3 s=3 stride_h=2 stride_w=2 pad_h=0 pad_w=0 dilation_h=1 "
        "dilation_w=1 groups=1 x=f32 y=f32 acc=f32 layout=nchw": (),
        "conv n=2 c=128 h=24 w=48 k=384 r=1 s=1 stride_h=1 stride_w=1 pad_h=0 pad_w=0 "
        "dilation_h=1 dilation_w=1 groups=1 x=bf16 y=bf16 acc=f32 layout=nchw": (),
        "conv n=2 c=1280 h=34 w=34 k=1280 r=3 s=3 stride_h=1 stride_w=1 pad_h=0 pad_w=0 "
        "dilation_h=1 dilation_w=1 groups=1 x=f16 y=f16 acc=f32 layout=nhwc": ("layout",),
    }
    values = {4: "conv2d_wrw", 6: "(31, 32), computed is (32, 32)", 7: "chwn"}
    assert {line: values[line] in why for line, why in told(reading)} == dict.fromkeys(values, True)


@pytest.mark.parametrize(
    ("header", "row", "sizes"),
    [
        ("N,C,H,W,K,R,S,stride,pad", "2,4,16,14,8,3,5,2,1", "h=16 w=14 k=8 r=3 s=5 stride_h=2"),
        ("n,c,h_out,w_out,k,r,s,stride", "2,4,7,6,8,3,5,2", "h=15 w=15 k=8 r=3 s=5 stride_h=2"),
        (
            "batch,in_channels,h,w,out_channels,kh,kw",
            "2,4,16,14,8,3,5",
            "h=16 w=14 k=8 r=3 s=5 stride_h=1",
        ),
        ("B,H,W,C,P,Q,F,S,input_dtype", "2,7,6,4,3,5,8,2,f16", "h=16 w=16 k=8 r=3 s=5 stride_h=2"),
    ],
)
def test_convolutions_by_other_names(read, told, header, row, sizes):
    reading = read(f"{header}\n{row}\n", "x.csv")
    assert not told(reading)
    assert [key.startswith(f"conv n=2 c=4 {sizes}") for key in keys(reading)] == [True]


def test_the_name_of_a_convolution_may_say_its_layout(read, told):
    header = "name,B,H,W,C,P,Q,F,S,input_dtype\n"
    rows = "".join(
        f"{name},2,7,6,4,3,5,8,2,f16\n" for name in ("c_2d_nhwc_hwcf_q", "c_2d_nchw_fchw", "x")
    )
    reading = read(header + rows, "x.csv")
    assert not told(reading)
    found = {
        (call.problem.options["layout"], call.lost): call.count for call in reading.workload.calls
    }
    assert found == {("nhwc", ("layout",)): 1, ("nchw", ()): 2}


def test_a_workload_file_is_a_list_with_its_counts(read, tmp_path):
    first = read("M,N,K,transA,transB,dtype,count,lda\n48,5,32,T,N,f16,7,64\n").workload
    workload.write(tmp_path / "workload.csv", first)
    again = read((tmp_path / "workload.csv").read_bytes(), "w.csv").workload
    assert [(c.problem, c.count, c.blas, c.lost) for c in again.calls] == [
        (c.problem, c.count, c.blas, c.lost) for c in first.calls
    ]
    heads = read(HEADS + "attention,a,f16,1,32,8,642,642,128,128,no,\n").workload
    workload.write(tmp_path / "workload.csv", heads)
    assert keys(read((tmp_path / "workload.csv").read_bytes(), "w.csv")) == [
        call.problem.key for call in heads.calls
    ]


@pytest.mark.parametrize(
    "header", ["op,dtype,batch_shape,normalized_shape,eps", "M,N,dtype", "heads,seq"]
)
def test_columns_of_nothing_known_are_listed(read, header):
    cells = ",".join("4" for _ in header.split(","))
    with raises(UsageError, *header.split(",")) as refused:
        read(f"# sizes\n{header}\n{cells}\n", "x.csv")
    hint = refused.value.hint or ""
    assert all(words in hint for words in ("M,N,K", "heads,seqlen,head_dim", "N,C,H,W,K,R,S"))


def test_a_column_that_occurs_twice_is_refused(read):
    with raises(UsageError, "'m'", "twice"):
        read("m,M,n,k\n5,5,48,32\n", "x.csv")
    assert read("m,n,k,note,note\n5,48,32,a,b\n", "x.csv").workload.total == 1


def test_a_list_is_recognized_by_its_columns(tmp_path):
    (tmp_path / "x.csv").write_text("M,N,K,dtype\n1,2,3,f99\n")
    assert recognized(str(tmp_path / "x.csv")) == "shapes"


@pytest.mark.parametrize(
    "text",
    [
        "m,n,k,dtype\n5,48,32,\n",
        "M,N,K,A,B\n48,5,32,T,N\n",
        "batch,heads,seq,dim,dtype\n1,4,8,64,any\n",
    ],
)
def test_a_dtype_that_is_assumed_is_noted(read, text):
    assert ASSUMED_DTYPE in read(text, "x.csv").inputs[0].notes
    assert ASSUMED_DTYPE not in read(text, "x.csv", dtype="f16").inputs[0].notes


@pytest.mark.parametrize(("arch", "count"), [("", 1), ("gfx950", 0)])
def test_fp8_of_no_gpu_is_noted(read, arch, count):
    reading = read("M,N,K,dtype\n1,2,3,fp8\n", "a.csv", arch=arch)
    assert len(reading.inputs[0].notes) == count
