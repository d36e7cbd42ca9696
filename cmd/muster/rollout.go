package main

import (
	"github.com/spf13/cobra"

	"github.com/muster-config/muster/distributor/rollout"
)

func (a *app) rolloutCmd() *cobra.Command {
	acts := []struct {
		kind        rollout.ActionKind
		short, long string
	}{
		{rollout.Pause, "stop a rollout where it is, until somebody resumes it", `Stops the rollout under way where it is. Hosts keep what they run, gates are still
judged, and a failure still goes back: a pause never stops that. It ends with
"muster rollout resume", or with "muster rollout abort".`},
		{rollout.Resume, "end a pause or a halt", `Ends a pause, and a halt. A gate that could not say anything is passed over once, in
this wave; a halt of another cohort for the same release is passed over too. What
failed is not gone: after a halt correct it in the config repo first.`},
		{rollout.Approve, "let the wave begin that waits for a person", `Lets the wave begin that waits for a person (approve_before in the rollout's policy),
or the one that --wave names. What was rolled back meanwhile is refused.`},
		{rollout.Abort, "send hosts back to the baseline, and halt the cohort", `Sends every host that has the release back to the baseline, a few at a time, and
halts the cohort: no release goes out to it until somebody reverts in the config
repo what the release changed, or resumes.`},
		{rollout.Supersede, "let the newest release take the place of the one under way now", `A newer release waits until the rollout under way has ended. This ends the waiting:
the hosts that have the one under way go back to the baseline, then the newest release
begins with its first wave. --epoch names the one under way, not the one that comes.`},
		{rollout.Refresh, "sign the order anew, as it is", `Signs the cohort's order anew, as it is, so that nobody takes it for stale. A rollout
controller does that every hour by itself.`},
	}
	cmd := group("rollout", "look at a rollout, and steer it", a.rolloutStatusCmd(), a.rolloutRunCmd(), a.rolloutSimulateCmd())
	for _, act := range acts {
		cmd.AddCommand(a.actCmd(act.kind, act.short, act.long))
	}
	return cmd
}

func (a *app) freezeCmd() *cobra.Command {
	return a.actCmd(rollout.Freeze, "let no release go out to a cohort, until a time", `Stops all forward moves of a cohort until --until: a rollout under way goes no
further, none begins. Going back is never stopped, nor is an override.`)
}

func (a *app) unfreezeCmd() *cobra.Command {
	return a.actCmd(rollout.Unfreeze, "end a freeze before its time", "Ends the freezes of a cohort before their time.")
}
