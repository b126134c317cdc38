"""The words in Chinese that README.zh.md and the site's Chinese first page share; the notebooks themselves are English.

A test holds them beside the English ones: every notebook and track is here, with the same names in code and the same
numbers.
"""

from __future__ import annotations

from support import course

#: The column "You will" of each notebook's title table.
WILL = {
    "00_start_here": "写出多个进程共同完成的一个训练步，先在单进程里，再在两个进程里；用自己写的引擎预测它的时间线；"
    "说清楚在什么条件下，八块设备四天就能做完一个月的训练",
    "01_loading_pipeline": "写出 `predict_epoch`、一个能正确处理异常的多进程数据加载器，以及判断瓶颈所在的三个时间",
    "02_samplers": "写出可断点续训的采样器、批采样器、分给各 rank × worker 的数据流、洗牌缓冲区，以及绝不重复的随机数",
    "03_distributed_sampler": "写出 DistributedSampler，验证它与 torch 完全一致；设计实验，看漏掉 `set_epoch` 的代价；"
    "在各 rank 份额不等时做精确评估",
    "04_contiguous_shards": "找到一种读页少、又能续训的 epoch 切分方式；写出可保存和加载的游标、恢复规则，"
    "以及一个从不存储的随机排列的逆映射",
    "05_rank_dataset": "写出紧凑存储的行、索引、直接读文件的数据集、RankDataset、遍历其加载器的循环和服务端的客户端，"
    "并找出每种做法各自划算的边界",
    "06_data_parallel": "用 send 和 receive 写出 all-reduce，写出带钩子和梯度桶的 DDP、把动量分摊到各 rank 的 Adam，"
    "以及可求梯度的 gather",
    "07_micro_batches": "为嵌套的批次写出 scatter 和 gather，在大小不等的微批次上累积梯度，数清 autograd 保留了什么，"
    "用少数几行的显存训练一个涉及所有行的损失，合并 BatchNorm 的统计量",
    "08_pipeline_clock": "写出流水线的时钟、逐步模拟器、1F1B 的次序，并求出最佳的微批次数",
    "09_streams_tasks_workers": "写出 worker、`spawn_workers`、一个时钟周期的调度器和整个计划的执行；"
    "先预测一次运行，再实测；看到两个流重叠执行",
    "10_checkpoint_recompute": "用 autograd 函数写一个激活重计算，再用钩子写一个；预测一步的峰值，把它压进 64 MB；"
    "判断一个 transformer 块该保留什么；修好三处错误",
    "11_backward_order": "写出 autograd 引擎的规则、Fork 和 Join、带反向的 Copy 和 Wait、两个节点的检查点、"
    "`depend` 和 `fence`",
    "12_gpipe": "写出 `flatten_sequential`、`MiniGPipe` 和 torchgpipe 的流水线；预测它的速度，再实测；"
    "选做：划分、随机数、显存",
    "13_cuda_streams": "写出数据竞争检测器的时钟步、基于事件的计时器、预取器和三流循环；修好三个已知的 bug",
    "14_schedules": "在显存相同的前提下胜过 1F1B，把反向拆成两半，找到能掩盖通信的预热，交错各个阶段，"
    "全部在四块设备上运行，最后选定一个调度",
    "15_scale_out": "写出任意次序的多进程流水线、切开的模型上的求均值和梯度裁剪、一个 rank 的显存、一步的秒数；"
    "规划 512 个 rank；在两台机器上启动任务",
    "16_when_it_breaks": "写出进程被杀也不丢的训练状态，把任务从三个 rank 迁到两个，找出卡住的 rank，"
    "诊断四个任务；另有八个选做",
}

#: Title and description of each track.
TRACKS = {
    course.START.title: ("从这里开始", "多个进程共同完成的一个训练步，以及其中谁在等谁。"),
    course.DATA.title: ("数据路线", "训练数据如何到达众多 rank：加载器、采样器、分片、数据并行。"),
    course.PIPELINE.title: ("流水线路线", "一个模型如何在多块设备上运行：微批次、时钟、激活重计算、GPipe。"),
    course.TOGETHER.title: ("两条路线汇合", "CUDA 流、没有气泡的调度、副本 × 阶段。"),
}

#: What README's picture shows.
PICTURE = (
    "notebook 08 的交互图：滑块设定微批次数和分区数，流水线的时钟表随之变化。"
    "在 {partitions} 个分区上，1 个微批次时 {first} 的格子空闲，{most} 个微批次时 {last}；旁边是空闲占比的曲线。"
)
